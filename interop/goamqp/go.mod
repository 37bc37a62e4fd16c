module go-amqp-driver

go 1.25.0

require github.com/Azure/go-amqp v1.7.0
