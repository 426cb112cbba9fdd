"""Finding schedules by measuring: what is tuned (`Problem`), the moves, measuring, the searches, the environment."""
