from harness import bench

__all__ = ["bench"]
