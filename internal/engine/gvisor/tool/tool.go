// Package tool is Harvest's own program inside gVisor sandboxes. It packs, unpacks and watches files, and
// connects to ports. It needs no files of an image: gVisor executes it from a file of the host.
package tool

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Handover turns the process into a tool if it was started as one, and then never returns.
func Handover() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case engine.OwnEcho:
		engine.Echo(os.Args[1:], os.Stdout)
		os.Exit(0)
	case wire.ToolName:
		os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
}

// become replaces this process by the program that command describes.
func become(command string) error {
	var c wire.LaunchArgs
	if err := json.Unmarshal([]byte(command), &c); err != nil || len(c.Args) == 0 {
		return errors.Errorf("invalid command %q: %v", command, err)
	}
	args, env := make([]string, len(c.Args)), make([]string, len(c.Env))
	for i, b := range c.Args {
		args[i] = string(b)
	}
	for i, b := range c.Env {
		env[i] = string(b)
	}
	program := search(args[0], env)
	return errors.Explainf(syscall.Exec(program, args, env), errors.Invalid,
		"there is no program %q in the sandbox", args[0])
}

// search finds a program in the PATH of env.
func search(name string, env []string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, pair := range env {
		path, ok := strings.CutPrefix(pair, "PATH=")
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(dir, name)
			if info, err := os.Stat(file); ok && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return file
			}
		}
	}
	return name
}

// Main runs a tool and returns its exit code. It writes an error to stderr as JSON of wire.Failure.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := errors.Errorf("the tools are %s DIR, %s PATH and %s REQUEST", wire.ToolUnpack, wire.ToolPack, wire.ToolFiles)
	if len(args) == 2 {
		switch args[0] {
		case wire.ToolUnpack:
			syscall.Umask(0)
			err = tarfs.UnpackAt(args[1], stdin, tarfs.Options{Owners: true, SetID: true, NoUmask: true})
		case wire.ToolPack:
			err = tarfs.PackAt(args[1], stdout)
		case wire.ToolFiles:
			err = files(args[1], stdout)
		case wire.ToolLaunch:
			err = become(args[1])
		case wire.ToolRelay:
			err = Relay(0)
		}
	}
	if err == nil {
		return 0
	}
	_ = json.NewEncoder(stderr).Encode(wire.FailureOf(err))
	return 1
}

// files executes a request. A watch ends with this process.
func files(request string, w io.Writer) error {
	var req tarfs.Request
	if err := json.Unmarshal([]byte(request), &req); err != nil {
		return errors.Wrapf(err, "read the request")
	}
	return tarfs.Do(context.Background(), tarfs.Host{}, req, w)
}
