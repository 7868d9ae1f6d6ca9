package keeper

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// ToolName is the first argument of this program when it runs inside a sandbox. Nothing of an image is needed for it: gVisor
// executes it from a file of the host.
const ToolName = wire.ToolName

// Tools that run inside.
const (
	Unpack = wire.ToolUnpack // DIR: a tar stream on standard input
	Pack   = wire.ToolPack   // PATH: to a tar stream on standard output
	Files  = wire.ToolFiles  // REQUEST: a tarfs.Request as JSON, answered on standard output
	launch = "launch"        // COMMAND: becomes another program whose arguments or environment are not UTF-8
	// relayTool connects to ports inside; its standard input is a socket over which the connections come.
	relayTool = "relay"
)

// launchArgs are a command whose bytes gVisor's control socket, which speaks JSON, would change.
type launchArgs struct{ Args, Env [][]byte }

// isText reports whether gVisor's control socket can carry a command as it is.
func isText(exec *runsc.Exec) bool {
	bad := func(s string) bool { return !utf8.ValidString(s) }
	return !slices.ContainsFunc(exec.Argv, bad) && !slices.ContainsFunc(exec.Envv, bad)
}

// viaTool turns a command into one that starts it from inside.
func viaTool(exec *runsc.Exec) {
	var c launchArgs
	for _, arg := range exec.Argv {
		c.Args = append(c.Args, []byte(arg))
	}
	for _, pair := range exec.Envv {
		c.Env = append(c.Env, []byte(pair))
	}
	b, err := json.Marshal(c)
	if err != nil {
		return // byte slices always have JSON
	}
	exec.Argv = []string{ToolName, launch, string(b)}
	exec.Envv = slices.DeleteFunc(exec.Envv, func(pair string) bool { return !utf8.ValidString(pair) })
}

// become replaces this process by the program that command describes.
func become(command string) error {
	var c launchArgs
	if err := json.Unmarshal([]byte(command), &c); err != nil || len(c.Args) == 0 {
		return errors.Errorf("%q is no command: %v", command, err)
	}
	args, env := make([]string, len(c.Args)), make([]string, len(c.Env))
	for i, b := range c.Args {
		args[i] = string(b)
	}
	for i, b := range c.Env {
		env[i] = string(b)
	}
	program := search(args[0], env)
	return errors.Explainf(syscall.Exec(program, args, env), errors.Invalid, "there is no program %q in the sandbox", args[0])
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

// Tool runs a tool inside a sandbox and returns its exit code. An error goes to stderr as JSON of wire.Failure.
func Tool(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := errors.Errorf("the tools are %s DIR, %s PATH and %s REQUEST", Unpack, Pack, Files)
	if len(args) == 2 {
		switch args[0] {
		case Unpack:
			err = tarfs.UnpackAt(args[1], stdin, tarfs.Options{Owners: true, SetID: true})
		case Pack:
			err = tarfs.PackAt(args[1], stdout)
		case Files:
			err = files(args[1], stdout)
		case launch:
			err = become(args[1])
		case relayTool:
			err = runRelay(0)
		}
	}
	if err == nil {
		return 0
	}
	_ = json.NewEncoder(stderr).Encode(wire.FailureOf(err))
	return 1
}

// files does what request says. The end of this process is the end of a watch.
func files(request string, w io.Writer) error {
	var req tarfs.Request
	if err := json.Unmarshal([]byte(request), &req); err != nil {
		return errors.Wrapf(err, "read the request")
	}
	return tarfs.Do(context.Background(), tarfs.Host{}, req, w)
}
