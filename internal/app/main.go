package app

import (
	"context"
	"os"

	"github.com/RelevanceAI/harvest/internal/app/programs/own"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/helpers"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	s3mount "github.com/RelevanceAI/harvest/internal/s3/mount"
)

// Helpers does not return in the helper processes of the engines and of mounts, as which a program with a server
// starts itself. The program must call it first.
func Helpers(ctx context.Context) {
	inside.Main(ctx)
	helpers.Main()
	fake.Main()
	s3mount.Main(ctx)
	s3Main(ctx)
}

// Part runs the part of Harvest that argv[0] names, and returns its exit code. ran is false if it names none.
func Part(ctx context.Context) (code int, ran bool) {
	program := own.Programs[os.Args[0]]
	if program == nil {
		return 0, false
	}
	return program(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr), true
}
