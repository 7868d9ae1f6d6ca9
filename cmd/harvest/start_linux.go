package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/startup"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/dirlock"
	"github.com/RelevanceAI/harvest/internal/base/filelock"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/cli"
)

const (
	startTime = 2 * time.Minute // limit for a start or a stop of the server, because a disk can stall that long
	pause     = 20 * time.Millisecond
)

// ensureServer returns when a server answers. If several commands need a server at the same time, one of them
// starts it.
func (c commands) ensureServer(ctx context.Context, cfg config.Config, server *client.Client) error {
	if err := canServe(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := c.tryServer(ctx, cfg, server)
		switch errors.KindOf(err) {
		case "":
			return nil
		case errors.Conflict, errors.Unavailable: // another process has the directory: a server that starts or stops
			if errors.StageOf(err) == startup.StageEngine { // our own server, whose engine failed
				return err
			}
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// tryServer starts a server unless one answers. Conflict if another command is starting one.
func (c commands) tryServer(ctx context.Context, cfg config.Config, server *client.Client) error {
	starting, err := lockStart(cfg.Data)
	if err != nil {
		return err
	}
	defer starting.Close()
	// Taking the lock reveals problems with the directory before anything is written there.
	lock, err := dirlock.Take(cfg.Data)
	if err != nil {
		if _, answer := server.Server(ctx); answer == nil {
			return nil
		}
		return err
	}
	if err := lock.Unlock(); err != nil {
		return err
	}
	if _, err := server.Server(ctx); err == nil {
		return nil
	}
	return c.startServer(ctx, cfg)
}

// lockStart gives this process alone the right to start a server in the data directory, which it creates if missing.
// Conflict if another command has that right.
func lockStart(data string) (*filelock.Lock, error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, dataError(err, data)
	}
	dir, err := os.Open(data)
	if err != nil {
		return nil, dataError(err, data)
	}
	starting, err := filelock.Exclusive(dir)
	if err != nil {
		dir.Close()
		return nil, errors.Explainf(err, errors.Conflict, "another command starts the server")
	}
	return starting, nil
}

// dataError explains why path cannot be a data directory.
func dataError(err error, path string) error {
	remedy := "choose your own directory with --data or HARVEST_DATA"
	if errors.Is(err, os.ErrPermission) {
		return errors.Remedy(errors.Explainf(err, errors.Denied, "data directory %s: permission denied",
			path), "%s", remedy)
	}
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "data directory %s: cannot be used: %v", path,
		err), "%s", remedy)
}

// startServer starts a server in the background and returns when it is ready. Its error is the server's error.
func (c commands) startServer(ctx context.Context, cfg config.Config) error {
	processes.KeepFiles()
	log, err := openLog(filepath.Join(cfg.Data, startup.LogName))
	if err != nil {
		return err
	}
	defer log.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "create a pipe")
	}
	defer ready.Close()
	defer theirs.Close()
	program, err := serverProgram(cfg.Data)
	if err != nil {
		return err
	}
	args := []string{c.Program, "up", "--background", "--data", cfg.Data}
	if c.ConfigFile != "" {
		file, err := filepath.Abs(c.ConfigFile)
		if err != nil {
			return errors.Wrapf(err, "find the configuration")
		}
		args = append(args, "--config", file)
	}
	if c.Engine != "" {
		args = append(args, "--engine", c.Engine)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program)
	cmd.Args, cmd.Env, cmd.Dir = args, c.serverEnv(), "/"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return errors.Wrapf(err, "start the server")
	}
	theirs.Close()
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })()
	answer, err := startup.Await(ready)
	switch {
	case ctx.Err() != nil:
		return errors.Remedy(errors.Explainf(ctx.Err(), errors.KindOf(ctx.Err()), "the server was not ready in time"),
			"see %s", log.Name())
	case err != nil:
		_ = cmd.Wait() // it has ended
		return errors.Remedy(errors.Explainf(err, errors.Internal, "the server ended during its start: %s",
			cmd.ProcessState), "see %s", log.Name())
	case answer.Problem != nil:
		_ = cmd.Wait()
		return client.Error(*answer.Problem)
	}
	return errors.Wrapf(cmd.Process.Release(), "release the server's process")
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > startup.LogLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, errors.Wrapf(err, "begin a new server.log")
		}
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return log, errors.Wrapf(err, "open server.log")
}

// inherited are the variables that a background server gets from the command that starts it, in addition to
// HARVEST_… and the variables that become secrets.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR",
	"XDG_DATA_HOME", "GOCOVERDIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"ANTHROPIC_BASE_URL", "ANTHROPIC_BEDROCK_BASE_URL", "OPENAI_BASE_URL", "OPENROUTER_BASE_URL",
	"GOOGLE_GEMINI_BASE_URL", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
	"MODAL_SERVER_URL", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "MODAL_PROFILE", "MODAL_CONFIG_PATH",
	"MODAL_ENVIRONMENT"}

func (c commands) serverEnv() []string {
	var env []string
	for _, pair := range c.Environ {
		name, _, _ := strings.Cut(pair, "=")
		ours := strings.HasPrefix(name, "HARVEST_") && name != cli.EnvURL && name != cli.EnvKey
		ours = ours || strings.HasPrefix(name, "OTEL_")
		if ours || slices.Contains(inherited, name) || slices.Contains(secret.Known(), name) {
			env = append(env, pair)
		}
	}
	return env
}
