// Command pause is the program of the image that tests of Kubernetes use. Without arguments it waits for a signal to
// end, as the first process of a pod. With "echo" it prints the other arguments.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "echo" {
		fmt.Fprintln(os.Stdout, strings.Join(os.Args[2:], " "))
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
}
