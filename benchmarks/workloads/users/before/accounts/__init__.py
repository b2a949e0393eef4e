"""The accounts of the shop: users, authentication, and the API for both."""
