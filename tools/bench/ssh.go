package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	sshWarm  = "ssh true, over an open connection"
	sshFresh = "ssh true, with a new connection"
	sshRsync = "rsync of 1,000 files, over an open connection"
	sshExec  = "harvest sandbox exec"
	sshInner = "sshd inside"
)

// benchSSH measures whole commands of OpenSSH and rsync: to Harvest's SSH, and to OpenSSH's server in the same sandbox,
// which is reached through harvest sandbox port.
func benchSSH(ctx context.Context, l *lab, r *recorder) error {
	for _, program := range []string{"ssh", "rsync", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			r.missing("OpenSSH", err)
			return nil
		}
	}
	tree := filepath.Join(l.dir, "sent")
	if err := makeCopied(tree); err != nil {
		return err
	}
	return withSandbox(ctx, l, "ssh", func(d *daemon, data, sb string) error {
		b := sshBench{lab: l, dir: filepath.Join(l.dir, "ssh-client"), sandbox: sb, data: data}
		if err := b.own(ctx); err != nil {
			return err
		}
		sides := []side{{harvest, b.side(tree, "own")}, {sshExec, func(ctx context.Context) (sample, error) {
			return timed(sshWarm, func() error {
				return whole(ctx, l.opts.harvest, "--data", data, "sandbox", "exec", sb, "--", "true")
			})
		}}}
		stop, err := b.inner(ctx, d)
		defer stop()
		if err != nil {
			r.missing(sshInner, err)
		} else {
			sides = append(sides, side{sshInner, b.side(tree, "inner")})
		}
		warm, fresh, sent := r.measure(sshWarm, "ms"), r.measure(sshFresh, "ms"), r.measure(sshRsync, "ms")
		warm.Aim, sent.Aim = &Aim{Peer: sshExec, AtMost: 1.5}, &Aim{Peer: sshInner, AtMost: 1.5}
		defer b.close(context.WithoutCancel(ctx))
		return r.turns(ctx, r.count(2, 20), []*Measure{warm, fresh, sent}, sides...)
	})
}

// sshBench is a client of SSH with two hosts in its configuration: own and inner. Both are the same sandbox.
type sshBench struct {
	lab           *lab
	dir           string
	data, sandbox string
	turn          int
}

func (b *sshBench) config() string { return filepath.Join(b.dir, "config") }

// own writes the configuration of the host own.
func (b *sshBench) own(ctx context.Context) error {
	home := filepath.Join(b.dir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, b.lab.opts.harvest, "--data", b.data, "ssh-config", "--install")
	cmd.Env = append(os.Environ(), "HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Wrapf(err, "install the configuration of ssh: %s", out)
	}
	return b.add("Host own\n\tHostname " + b.sandbox + ".harvest\n\tProxyCommand " +
		strconv.Quote(b.lab.opts.harvest) + " --data " + strconv.Quote(b.data) + " ssh --stdio " + b.sandbox +
		"\n\tHostKeyAlias harvest\n\tUserKnownHostsFile " + filepath.Join(home, ".ssh", "harvest_known_hosts") +
		"\n\tPreferredAuthentications none\n")
}

// add appends a host to the configuration, and options for all.
func (b *sshBench) add(host string) error {
	f, err := os.OpenFile(b.config(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(host + "\tControlPath " + filepath.Join(b.dir, "%n") + "\n\tIdentityAgent none\n")
	return errors.Join(err, f.Close())
}

// inner starts OpenSSH's server in the sandbox, and a way to it. The returned function ends that way.
func (b *sshBench) inner(ctx context.Context, d *daemon) (stop func(), err error) {
	key := filepath.Join(b.dir, "key")
	if err := whole(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key); err != nil {
		return func() {}, err
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return func() {}, err
	}
	res, err := d.Exec(ctx, b.sandbox, api.ExecRequest{Args: []string{"sh", "-ec", `
apt-get -q update && apt-get -q install -y --no-install-recommends openssh-server
mkdir -p /run/sshd /root/.ssh && printf %s "$1" >/root/.ssh/authorized_keys
/usr/sbin/sshd -o ListenAddress=127.0.0.1 -o StrictModes=no -o PermitRootLogin=yes`, "sh", string(public)}})
	if err == nil && res.ReturnCode != 0 {
		err = errors.Errorf("install sshd: %s", res.Stderr)
	}
	if err != nil {
		return func() {}, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return func() {}, err
	}
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err = errors.Join(err, l.Close()); err != nil {
		return func() {}, err
	}
	way := exec.CommandContext(context.WithoutCancel(ctx), b.lab.opts.harvest, "--data", b.data, "sandbox", "port",
		b.sandbox, "22", "--listen", address)
	if err := way.Start(); err != nil {
		return func() {}, err
	}
	stop = func() {
		_ = way.Process.Signal(syscall.SIGINT)
		_ = way.Wait() // its signal is an error here
	}
	err = b.add("Host inner\n\tHostname 127.0.0.1\n\tPort " + port + "\n\tUser root\n\tIdentityFile " + key +
		"\n\tStrictHostKeyChecking no\n\tUserKnownHostsFile /dev/null\n\tLogLevel ERROR\n")
	for deadline := time.Now().Add(10 * time.Second); err == nil; {
		if err = whole(ctx, "ssh", "-F", b.config(), "-S", "none", "inner", "true"); err == nil {
			return stop, nil
		}
		if time.Now().Before(deadline) {
			err = nil
		}
	}
	return stop, err
}

// side measures the commands to one host.
func (b *sshBench) side(tree, host string) func(ctx context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		ssh := []string{"-F", b.config(), host, "true"}
		// It opens the connection if it is not open yet.
		const open = `ssh -F "$1" -O check "$2" 2>/dev/null || ssh -F "$1" -MfN -o ControlPersist=yes "$2"`
		if err := whole(ctx, "sh", "-c", open, "sh", b.config(), host); err != nil {
			return nil, err
		}
		b.turn++
		all := sample{}
		for name, args := range map[string][]string{
			sshWarm:  append([]string{"ssh"}, ssh...),
			sshFresh: append([]string{"ssh", "-S", "none"}, ssh...),
			sshRsync: {"rsync", "-a", "-e", "ssh -F " + b.config(), tree + "/",
				host + ":/srv/" + host + strconv.Itoa(b.turn) + "/"},
		} {
			s, err := timed(name, func() error { return whole(ctx, args[0], args[1:]...) })
			if err != nil {
				return nil, err
			}
			all[name] = s[name]
		}
		return all, nil
	}
}

// close closes the open connections.
func (b *sshBench) close(ctx context.Context) {
	for _, host := range []string{"own", "inner"} {
		_ = whole(ctx, "ssh", "-F", b.config(), "-O", "exit", host) // it may not be open
	}
}
