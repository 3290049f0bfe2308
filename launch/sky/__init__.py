"""The backend of `launch sky`: rented machines."""
