"""Operations with custom implementations or gradients; pure functions of arrays."""
