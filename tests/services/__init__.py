"""Services that run drivers, each as a small server on this machine, and what providers ask of them."""
