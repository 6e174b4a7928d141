"""One module for each verb; `app` puts them together."""
