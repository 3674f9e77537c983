"""torch's LSTM, to compare with."""
