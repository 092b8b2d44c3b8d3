"""The policy that is trained: a Hugging Face model that scores packed trees, its LoRA, and its files."""
