"""The images of the project and of the programs beside it, without a container engine."""
