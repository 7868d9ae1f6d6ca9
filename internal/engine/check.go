package engine

import (
	"fmt"
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Limits on the size of a command. Linux enforces them itself; engines with another kernel must refuse the same
// commands.
const (
	MaxArg = 128<<10 - 1 // bytes of one argument, or of one NAME=value pair of the environment
	// Bytes of all arguments and variables together. The rest of Linux's 2 MiB is left to the image's
	// environment.
	MaxArgs     = 1536 << 10
	MaxTerminal = 1<<16 - 1 // rows or columns, which the kernel stores in 16 bits
)

const perArg = 9 // overhead of each argument: a NUL and a pointer

// CheckCommand returns Invalid if no engine could start cmd. It does not check that the program, the directory
// and the user exist.
func CheckCommand(cmd Command) error {
	if len(cmd.Args) == 0 || cmd.Args[0] == "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "the command is empty"), "give a program and its arguments")
	}
	total := 0
	for _, arg := range cmd.Args {
		if err := checkText(arg, "an argument"); err != nil {
			return err
		}
		total += len(arg) + perArg
	}
	for name, value := range cmd.Env {
		if err := CheckEnvName(name); err != nil {
			return err
		}
		if err := checkText(name+"="+value, fmt.Sprintf("the environment variable %.100q", name)); err != nil {
			return err
		}
		total += len(name) + 1 + len(value) + perArg
	}
	if total > MaxArgs {
		return errors.Remedy(errors.Newf(errors.Invalid,
			"arguments and environment have %d bytes together, more than the maximum of %d", total, MaxArgs),
			"pass large values in a file or on standard input")
	}
	if cmd.Dir != "" && !path.IsAbs(cmd.Dir) {
		return errors.Remedy(errors.Newf(errors.Invalid, "the working directory %.200q is not absolute", cmd.Dir),
			"begin it with '/'")
	}
	if strings.ContainsRune(cmd.Dir, 0) || strings.ContainsRune(cmd.User, 0) {
		return errors.Newf(errors.Invalid, "the working directory or the user contains a NUL byte")
	}
	if cmd.Terminal != nil {
		return CheckSize(*cmd.Terminal)
	}
	return nil
}

// CheckEnvName returns Invalid if name is not a valid name of an environment variable.
func CheckEnvName(name string) error {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid name of an environment variable: %.100q", name),
			"use a name that is not empty and contains neither '=' nor NUL")
	}
	return nil
}

// CheckSize returns Invalid if size is not a valid terminal size.
func CheckSize(size Size) error {
	if size.Rows < 1 || size.Cols < 1 || size.Rows > MaxTerminal || size.Cols > MaxTerminal {
		return errors.Remedy(errors.Newf(errors.Invalid, "a terminal cannot have %d rows and %d columns",
			size.Rows, size.Cols),
			"give 1 to %d of each", MaxTerminal)
	}
	return nil
}

func checkText(text, what string) error {
	if strings.ContainsRune(text, 0) {
		return errors.Newf(errors.Invalid, "%s contains a NUL byte", what)
	}
	if len(text) > MaxArg {
		return errors.Remedy(errors.Newf(errors.Invalid, "%s has %d bytes, more than the maximum of %d", what,
			len(text), MaxArg),
			"pass large values in a file or on standard input")
	}
	return nil
}
