"""The models of the screens, made from values of the control plane. Pure."""
