"""Circuit breakers and rate limiters: what keeps a run from hammering what it depends on."""
