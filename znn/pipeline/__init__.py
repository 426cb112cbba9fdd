"""Training, inference and evaluation over volumes."""
