"""Request and response models. No behaviour."""
