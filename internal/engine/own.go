package engine

import (
	"fmt"
	"io"
	"os"
)

// OwnEcho names the own program (Command.Own) that every engine supports for tests: Echo.
const OwnEcho = "harvest-echo"

// Echo prints the user ID, the working directory and the arguments, one per line.
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
