"""What lies on disk: tensor index, model description, packed experts, MTP extraction, download."""
