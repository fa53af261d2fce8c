"""The PyTorch modules of the components, one file for each file of descriptions."""
