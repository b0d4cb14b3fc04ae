"""The store on Cloud Spanner."""
