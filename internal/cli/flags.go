package cli

import (
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// SandboxFlags are the flags that describe a sandbox.
type SandboxFlags struct {
	image, Name      string
	volumes, tags    []string
	secrets          []string
	s3, s3Secret     string
	commands         []string
	network          []string
	cpu              float64
	memory, disk     SizeFlag
	processes, files int
	volumeFiles      int
	gpu              string
	hostname         string
	isolation        string
	reveal           bool
}

// Add adds the flags to cmd.
func (f *SandboxFlags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.image, "image", "", "image, by id, digest or name (default: base)")
	flags.StringArrayVar(&f.commands, "dockerfile-command", nil,
		"instruction of a Dockerfile to run on top of the image, such as 'RUN apt-get install -y jq', repeatable")
	flags.StringVar(&f.Name, "name", "", "name of the sandbox")
	flags.StringVar(&f.hostname, "hostname", "", "host name inside (default: derived from the name, or the id)")
	flags.StringArrayVar(&f.tags, "tag", nil, "label KEY=VALUE, repeatable")
	flags.StringArrayVarP(&f.volumes, "volume", "v", nil, "VOLUME:/path[:ro], created if missing, repeatable")
	flags.StringArrayVar(&f.secrets, "secret", nil,
		"name of a secret for the environment of commands, repeatable; modal:NAME is a secret at Modal")
	flags.BoolVar(&f.reveal, "reveal", false,
		"give commands the values of secrets, also of those that are bound to hosts")
	flags.StringVar(&f.s3, "s3", "",
		"S3 location of a volume, s3://BUCKET/PREFIX:/path[:init][:sync][:every=5m]: init downloads it first, sync "+
			"uploads it at the end, every uploads it at intervals; or s3://BUCKET/PREFIX:/path:mount[:ro] to mount "+
			"the bucket itself")
	flags.StringVar(&f.s3Secret, "s3-secret", "", "secret with the bucket's credentials (default: aws)")
	flags.Float64Var(&f.cpu, "cpu", 0, "cores")
	flags.Var(&f.memory, "memory", "memory, such as 512MiB or 2GiB")
	flags.Var(&f.disk, "disk", "maximum size of files outside of volumes, such as 10GiB")
	flags.IntVar(&f.processes, "processes", 0, "maximum number of processes")
	flags.IntVar(&f.files, "open-files", 0, "maximum number of open files per process")
	flags.IntVar(&f.volumeFiles, "volume-files", 0, "maximum number of files and directories per volume")
	flags.StringVar(&f.gpu, "gpu", "", "GPU, such as T4, or A100:2 for two, if the engine has GPUs")
	AddIsolation(cmd, &f.isolation)
	AddNetwork(cmd, &f.network)
}

// AddIsolation adds the flag for the kind of isolation.
func AddIsolation(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "isolation", "",
		"gvisor, or container, which is faster and shares this machine's kernel (default: isolation.default)")
}

// Request returns the request to create the sandbox, without the environment of commands.
func (f *SandboxFlags) Request(cmd *cobra.Command) (api.SandboxRequest, error) {
	req := api.SandboxRequest{
		Image: f.image, Commands: f.commands, Name: f.Name, Hostname: f.hostname, Secrets: f.secrets,
		CPU: f.cpu, Memory: int64(f.memory), Disk: int64(f.disk), Processes: f.processes, Files: f.files,
		VolumeFiles: f.volumeFiles, GPU: f.gpu, Isolation: f.isolation, Reveal: f.reveal,
	}
	for flag, zero := range map[string]bool{"cpu": f.cpu == 0, "processes": f.processes == 0,
		"open-files": f.files == 0, "volume-files": f.volumeFiles == 0} {
		if zero && cmd.Flags().Changed(flag) {
			return req, errors.Remedy(errors.Newf(errors.Invalid, "invalid --%s: 0", flag),
				"give a number above 0, or omit the flag for the default")
		}
	}
	var err error
	if req.Network, err = ParseNetwork(f.network); err != nil {
		return req, err
	}
	if req.Volumes, err = mounts(f.volumes); err != nil {
		return req, err
	}
	if req.S3, err = parseS3(f.s3, f.s3Secret); err != nil {
		return req, err
	}
	req.Tags, err = Tags(f.tags)
	return req, err
}

// ProcessFlags are the flags that describe how a command runs. Environment, directory and user can also apply
// to a sandbox.
type ProcessFlags struct {
	Env           []string
	EnvFile       string
	Workdir, User string
	Interactive   bool
	Terminal      bool
	timeout       TimeFlag
	JSON          bool
}

// Add adds all flags to cmd.
func (f *ProcessFlags) Add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.AddWhere(cmd)
	flags.BoolVarP(&f.Interactive, "interactive", "i", true, "forward standard input")
	flags.BoolVarP(&f.Terminal, "tty", "t", false, "allocate a terminal for the command")
	flags.Var(&f.timeout, "timeout",
		"time limit, such as 90s or 2h; the exit code is then 124 (default: exec_timeout of the configuration)")
	flags.BoolVar(&f.JSON, "json", false, "print the result as JSON instead of the output")
}

// AddEnv adds the environment flags.
func (f *ProcessFlags) AddEnv(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.Env, "env", "e", nil, "NAME=VALUE, or NAME to forward a variable")
	cmd.Flags().StringVar(&f.EnvFile, "env-file", "", "file of NAME=VALUE lines")
}

// AddWhere adds the flags of the environment, the directory and the user.
func (f *ProcessFlags) AddWhere(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.AddEnv(cmd)
	flags.StringVarP(&f.Workdir, "workdir", "w", "", "working directory")
	flags.StringVarP(&f.User, "user", "u", "", "user, by name or number, with an optional :GROUP")
}

// Request returns the request to execute, without the command itself.
func (f *ProcessFlags) Request(c *CLI) (api.ExecRequest, error) {
	env, err := c.Environment(f.EnvFile, f.Env)
	if err != nil {
		return api.ExecRequest{}, err
	}
	req := api.ExecRequest{Env: env, Workdir: f.Workdir, User: f.User, TimeoutSeconds: f.timeout.Seconds(),
		Capture: f.JSON}
	if f.Terminal {
		req.Terminal = &api.Size{Rows: 24, Cols: 80}
		if size, ok := c.TerminalSize(); ok {
			req.Terminal = &size
		}
		if _, set := env["TERM"]; !set && c.Env("TERM") != "" {
			env["TERM"] = c.Env("TERM")
		}
	}
	return req, nil
}

// AddNetwork adds the flag --network, whose values ParseNetwork parses.
func AddNetwork(cmd *cobra.Command, rules *[]string) {
	cmd.Flags().StringArrayVar(rules, "network", nil,
		"network policy: none, default (the internet), allow=NAME,… or deny=NAME,…, repeatable")
}
