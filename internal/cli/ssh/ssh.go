// Package ssh has the commands for SSH: harvest ssh, and harvest ssh-config for other programs.
package ssh

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// domain ends the names of sandboxes for programs that use ssh. It is in no DNS, only in the configuration of ssh.
const domain = ".harvest"

// hostAlias is the name of the server's key in the file of known hosts.
const hostAlias = "harvest"

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Commands returns the commands.
func Commands(base *cli.CLI) []*cobra.Command {
	c := commands{base}
	return []*cobra.Command{c.ssh(), c.config()}
}

func (c commands) ssh() *cobra.Command {
	stdio := false
	cmd := &cobra.Command{
		Use:   "ssh SANDBOX [-- SSH-ARGUMENTS…]",
		Short: "Connect to a sandbox with ssh",
		Long: `Run ssh, connected to a sandbox or to the sandbox of a session. It needs no key: the connection goes
through the server's HTTP, with your rights there. Arguments after -- are those of ssh: options, and a command.

"harvest ssh-config --install" lets other programs connect, such as editors, rsync and git. With
server.ssh_listen, a server also accepts clients without harvest, by keys of "harvest key add-ssh".`,
		Example: `  harvest ssh dev
  harvest ssh dev -- -L 8080:localhost:8080
  harvest ssh dev -- uname -a`,
		Args: cli.Args(1, -1, "a sandbox, and arguments of ssh after --"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if stdio {
				if len(args) != 1 {
					return cli.Usage(cmd, "--stdio takes a sandbox alone")
				}
				return c.pipe(cmd.Context(), args[0])
			}
			return c.run(cmd.Context(), args[0], args[1:])
		},
	}
	cmd.Flags().BoolVar(&stdio, "stdio", false,
		"carry the connection on standard input and output, as a ProxyCommand of ssh")
	return cmd
}

// sandboxOf returns the sandbox for the name of a host, which a program may have from anywhere, such as the URL of a
// submodule.
func sandboxOf(host string) (string, error) {
	name := strings.TrimSuffix(host, domain)
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return r >= 0x80 || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-", r)
	}) {
		return "", errors.Newf(errors.Invalid, "%.100q is not the name of a sandbox", name)
	}
	return name, nil
}

// pipe carries a connection on the standard streams.
func (c commands) pipe(ctx context.Context, host string) error {
	name, err := sandboxOf(host)
	if err != nil {
		return err
	}
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	conn, err := server.DialSSH(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, c.In)
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	// If the server closes the connection, ssh knows whether that was due.
	_, err = io.Copy(c.Out, conn)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && ctx.Err() == nil {
		return errors.Explainf(err, errors.Unavailable, "the connection to the server broke")
	}
	return nil
}

// run runs ssh.
func (c commands) run(ctx context.Context, sandbox string, args []string) error {
	if _, err := sandboxOf(sandbox); err != nil {
		return err
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.NotFound, "there is no program ssh on this machine"),
			"install the client of OpenSSH, or use harvest sandbox sh")
	}
	server, err := c.Connect(ctx)
	if err != nil {
		return err
	}
	info, err := server.SSH(ctx)
	server.Close()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "harvest-ssh-")
	if err != nil {
		return errors.Wrapf(err, "make a directory for the key of the server")
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "config")
	known := filepath.Join(dir, "known_hosts")
	// ssh uses the first value of each option: the user's own come after.
	own := ""
	if home, err := os.UserHomeDir(); err == nil {
		if path := filepath.Join(home, ".ssh", "config"); exists(path) {
			own = fmt.Sprintf("Match all\n\tInclude %q\n", path)
		}
	}
	err = errors.Join(os.WriteFile(known, []byte(knownHost(info)), 0o600),
		os.WriteFile(config, []byte(block(c.self(), known)+own), 0o600))
	if err != nil {
		return errors.Wrapf(err, "write the configuration of ssh")
	}
	// The options of the user's arguments come before the host, the command after it: ssh takes both in one list.
	options, command := split(args)
	line := append([]string{"-F", config}, options...)
	line = append(line, sandbox+domain)
	cmd := exec.CommandContext(ctx, program, append(line, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.Err
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return cli.OwnExit(exit.ExitCode())
	}
	return errors.Wrapf(err, "run ssh")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// withValue are the options of ssh that have a value (ssh(1) of OpenSSH 10).
const withValue = "BbcDEeFIiJLlmOoPpQRSWw"

// split separates the options of ssh from the command that follows them.
func split(args []string) (options, command []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if len(arg) < 2 || arg[0] != '-' {
			return args[:i], args[i:]
		}
		if arg == "--" {
			return args[:i], args[i+1:]
		}
		for j := 1; j < len(arg); j++ {
			if strings.ContainsRune(withValue, rune(arg[j])) {
				if j == len(arg)-1 {
					i++
				}
				break
			}
		}
	}
	return args, nil
}

// self is the command line of this program with its global flags, for a shell. Per cent signs are doubled, as
// ssh_config(5) wants it.
func (c commands) self() string {
	path, err := os.Executable()
	if err != nil {
		path = "harvest"
	}
	words := []string{path}
	if c.Data != "" {
		words = append(words, "--data", absolute(c.Data))
	}
	if c.ConfigFile != "" {
		words = append(words, "--config", absolute(c.ConfigFile))
	}
	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return strings.ReplaceAll(strings.Join(words, " "), "%", "%%")
}

// absolute returns a path that is valid in any working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// knownHost is the line of the server's key.
func knownHost(info api.SSH) string { return hostAlias + " " + info.HostKey + "\n" }

// block is the configuration of ssh for sandboxes. The server knows the client by the connection that program makes:
// ssh has to prove nothing. The client's agent stays outside unless it is forwarded with -A.
func block(program, known string) string {
	return fmt.Sprintf(`Host *%s
	ProxyCommand %s ssh --stdio '%%n'
	User harvest
	HostKeyAlias %s
	UserKnownHostsFile "%s"
	StrictHostKeyChecking yes
	UpdateHostKeys no
	PreferredAuthentications none
	PubkeyAuthentication no
	ForwardAgent no
	ForwardX11 no
	ServerAliveInterval 30
`, domain, program, hostAlias, strings.ReplaceAll(known, "%", "%%"))
}

// Fences of the block in the user's configuration.
const (
	begin = "# >>> harvest: written by harvest ssh-config --install >>>\n"
	end   = "# <<< harvest <<<\n"
)

func (c commands) config() *cobra.Command {
	install, remove := false, false
	cmd := &cobra.Command{
		Use:   "ssh-config [--install | --remove]",
		Short: "Let programs that use ssh connect to sandboxes",
		Long: `Print the configuration with which ssh, and programs that use it, connect to SANDBOX.harvest.

With --install, write it into ~/.ssh/config, between two lines that mark it; installing it again
replaces it. The key of the server goes to ~/.ssh/harvest_known_hosts.`,
		Example: `  harvest ssh-config --install
  ssh dev.harvest
  rsync -a src/ dev.harvest:/root/src/
  code --remote ssh-remote+dev.harvest /root/project`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if install && remove {
				return cli.Usage(cmd, "--install and --remove exclude each other")
			}
			home, err := os.UserHomeDir()
			if err != nil {
				return errors.Wrapf(err, "find your home directory")
			}
			dir := filepath.Join(home, ".ssh")
			if remove {
				return change(filepath.Join(dir, "config"), "")
			}
			return c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
				info, err := server.SSH(ctx)
				if err != nil {
					return err
				}
				known := filepath.Join(dir, "harvest_known_hosts")
				text := block(c.self(), known)
				if !install {
					fmt.Fprint(c.Out, text)
					return nil
				}
				if err := os.MkdirAll(dir, 0o700); err != nil {
					return errors.Wrapf(err, "make the directory of ssh's configuration")
				}
				err = atomicfile.Write(known, []byte(knownHost(info)), 0o600)
				if err == nil {
					err = change(filepath.Join(dir, "config"), text)
				}
				if err == nil {
					c.Notef("ssh connects to SANDBOX%s now", domain)
				}
				return err
			})(cmd, nil)
		},
	}
	cmd.Flags().BoolVar(&install, "install", false, "write it into ~/.ssh/config")
	cmd.Flags().BoolVar(&remove, "remove", false, "remove it from ~/.ssh/config")
	return cmd
}

// change replaces the block in a configuration of ssh; "" removes it. The block comes first: ssh uses the first value
// that it finds of each option.
func change(path, text string) error {
	// The file may be a link into a directory of such files.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "read the configuration of ssh")
	}
	rest := string(old)
	if i := strings.Index(rest, begin); i >= 0 {
		j := strings.Index(rest[i:], end)
		if j < 0 {
			err := errors.Newf(errors.Conflict, "%s has the beginning of Harvest's block, and no end", path)
			return errors.Remedy(err, "remove the block by hand, from the line %q on", strings.TrimSpace(begin))
		}
		rest = rest[:i] + rest[i+j+len(end):]
	}
	if text != "" {
		// What the user has written before the first host holds for all hosts: it stays so.
		rest = begin + text + "Match all\n" + end + rest
	}
	if rest == string(old) {
		return nil
	}
	mode := os.FileMode(0o600)
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return errors.Wrapf(atomicfile.Write(path, []byte(rest), mode), "write the configuration of ssh")
}
