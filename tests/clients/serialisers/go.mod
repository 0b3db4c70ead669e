module firn.dev/serialisers

go 1.25
