"""A rate-based admission control scheme for content-based publish/subscribe systems (Guo, Zhong, Zhang, Li)."""
