package time

import "syscall"

// Seconds by which this program's wall clock is ahead: CLOCK_OFFSET_S. This file is laid over Go's package by
// `go build -overlay`, since a program without a C library cannot be given another clock from outside.
var shift = func() (seconds int64) {
	text, _ := syscall.Getenv("CLOCK_OFFSET_S")
	sign := int64(1)
	for _, digit := range text {
		if digit == '-' {
			sign = -1
		} else {
			seconds = seconds*10 + int64(digit-'0')
		}
	}
	return sign * seconds
}()
