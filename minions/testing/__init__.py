"""What applications test with: clocks, scripted models, journals."""
