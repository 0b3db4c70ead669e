module firn.dev/hack/tools/pause

go 1.24.0
