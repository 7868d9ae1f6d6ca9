package sandboxes

import (
	"context"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

func (c commands) runCommand() *cobra.Command {
	var box cli.SandboxFlags
	var how cli.ProcessFlags
	var code string
	var keep bool
	var ports []string
	cmd := &cobra.Command{
		Use:   "run [flags] (--code CODE | SCRIPT | -) [ARG…] | run [flags] -- PROGRAM [ARG…]",
		Short: "Run Python code or a program in a new sandbox",
		Long: `Run Python code (from --code, a script or standard input), or any program after --, in a new sandbox.
The sandbox ends with the program. Output is streamed; standard input and signals are forwarded. The
exit code is that of the program, or 124 after --timeout.`,
		Example: `  harvest run --code 'print(6*7)'
  harvest run script.py input.txt
  echo 'print("hello")' | harvest run -
  harvest run --timeout 10s --memory 512MiB -v data:/data -- python3 /data/job.py
  harvest run -it -- bash
  harvest run -p 8080 -- python3 -m http.server 8080
  harvest run --network allow=pypi.org,files.pythonhosted.org -- pip download requests
  harvest run --json --code 'raise SystemExit(3)'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := how.Request(c.CLI)
			if err != nil {
				return err
			}
			fromStdin, err := c.what(cmd, &req, code, args)
			if err != nil {
				return err
			}
			how.Interactive = how.Interactive && !fromStdin
			run := api.RunRequest{ExecRequest: req, Keep: keep}
			if run.Sandbox, err = box.Request(cmd); err != nil {
				return err
			}
			forwards, err := parseForwards(ports)
			if err != nil {
				return err
			}
			run.Sandbox.Ports = portsOf(forwards)
			return c.run(cmd.Context(), run, how, forwards)
		},
	}
	// Arguments after the script belong to the script, as with python3 itself.
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&code, "code", "", "Python code")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the sandbox, and print its id")
	addPorts(cmd, &ports, "[LOCAL:]PORT of the sandbox to make reachable on 127.0.0.1 while it runs, repeatable")
	box.Add(cmd)
	how.Add(cmd)
	return cmd
}

// what sets the program to run, and reports whether it was read from standard input.
func (c commands) what(cmd *cobra.Command, req *api.ExecRequest, code string, args []string) (fromStdin bool,
	err error) {
	switch {
	case cmd.Flags().Changed("code"):
		req.Code, req.Args = code, args
		return false, checkSource("the code", code)
	case cmd.ArgsLenAtDash() == 0 && len(args) > 0:
		req.Args = args
		return false, nil
	case len(args) == 0:
		return false, errors.Remedy(errors.Newf(errors.Invalid, "nothing to run"),
			"give --code CODE, a script, - for standard input, or -- and a program")
	case args[0] == "-":
		req.Args = args[1:]
		if req.Code, err = c.readAll(); err != nil {
			return true, err
		}
		return true, checkSource("standard input", req.Code)
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return false, errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot read the script %s", args[0]),
			"give a readable file; to run a program of the sandbox, put -- before it")
	}
	req.Code, req.Args = string(data), args[1:]
	return false, checkSource("the script "+args[0], req.Code)
}

// checkSource rejects code that JSON cannot carry or Python cannot read, before a sandbox is started for it.
func checkSource(what, code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: empty", what),
			"give some Python code, such as print(6*7)")
	case strings.ContainsRune(code, 0) || !utf8.ValidString(code):
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: binary data, not text", what),
			"give Python source in UTF-8; to run a program, copy it into a volume and name it after --")
	}
	return nil
}

func (c commands) run(ctx context.Context, req api.RunRequest, how cli.ProcessFlags, forwards []forward) error {
	opened, err := listenAll(forwards)
	if err != nil {
		return err
	}
	defer closeAll(opened)
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	kept, begin := "", time.Now()
	res, err := c.stream(ctx, how, func(ctx context.Context, streams client.Streams) (*client.Process, error) {
		p, err := server.Run(ctx, req, streams)
		if err == nil {
			kept = p.SandboxID()
			for _, f := range opened {
				c.Notef("port %d of the sandbox is at %s", f.port, f.listener.Addr())
			}
			go c.passOn(ctx, server, kept, opened)
		}
		return p, err
	})
	if err != nil {
		return err
	}
	if req.Keep {
		c.Notef("the sandbox is kept: %s", kept)
	}
	if res.ReturnCode != 0 && !how.JSON {
		c.tellDenied(ctx, server, kept, begin)
	}
	return c.finish(res, how.JSON)
}
