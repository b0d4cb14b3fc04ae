module example.org/late

go 1.19
