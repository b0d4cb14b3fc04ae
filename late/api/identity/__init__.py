"""Callers that an identity provider vouches for: people by OIDC or behind a proxy, services by JWT.

`Identities` joins the three. What they may do is the operator's to say, by `--role`: a provider
says who somebody is, and in which groups, and grants nothing itself.
"""
