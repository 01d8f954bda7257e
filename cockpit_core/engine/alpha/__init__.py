"""Alpha: two backward passes, and what is kept between them."""
