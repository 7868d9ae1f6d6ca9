package engine

import (
	"fmt"
	"io"
	"os"
)

// OwnEcho is an own program (Command.Own) that engines themselves have, so that they can be tested: Echo.
const OwnEcho = "harvest-echo"

// Echo prints the user's number, the working directory and the arguments, one a line.
func Echo(args []string, stdout io.Writer) {
	dir, err := os.Getwd()
	if err != nil {
		dir = err.Error()
	}
	fmt.Fprintln(stdout, os.Getuid())
	fmt.Fprintln(stdout, dir)
	for _, arg := range args {
		fmt.Fprintln(stdout, arg)
	}
}
