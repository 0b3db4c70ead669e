"""What users wrote in specs, read into typed terms and checked against columns."""
