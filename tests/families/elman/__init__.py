"""A family of the tests: Elman's recurrent network (Elman 1990) as blocks in our stack."""
