package failure

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
)

func TestErrorsOfSteps(t *testing.T) {
	t.Parallel()
	s := Step{Stage: "build", Dir: "web", Command: "npm  run\nbuild " + strings.Repeat("x", 200)}
	for _, c := range []struct {
		result commands.Result
		output string
		kind   errors.Kind
		text   string
	}{
		{commands.Result{}, "", "", ""},
		{commands.Result{ReturnCode: 1}, "", errors.Invalid, "in web ended with exit code 1"},
		{commands.Result{ReturnCode: 1}, "npm error code ETIMEDOUT", errors.Unavailable, "could not be reached"},
		{commands.Result{ReturnCode: 1}, "npm error 503 Service Unavailable - GET https://x/y", errors.Unavailable,
			"refused"},
		{commands.Result{ReturnCode: 1}, "TestServer: got 503 things, want 502", errors.Invalid, "exit code 1"},
		{commands.Result{ReturnCode: 1}, "E: Temporary failure resolving 'mirror.example'", errors.Unavailable,
			"server"},
		{commands.Result{ReturnCode: 1}, "go: errors parsing go.mod: go.mod:3: invalid go version '1.24.0'",
			errors.Unsupported,
			"newer Go"},
		{commands.Result{ReturnCode: 1}, "Error: pg_config executable not found.", errors.Unsupported, "PostgreSQL"},
		{commands.Result{ReturnCode: 1, Reason: "the sandbox ended"}, "", errors.Unavailable, "the sandbox ended"},
		{commands.Result{ReturnCode: 127}, "", errors.Unsupported, "does not have"},
		{commands.Result{ReturnCode: 127}, "sh: 1: make: not found\n/bin/sh: 1: cargo: not found\n", errors.Unsupported,
			"needs cargo, which"},
		{commands.Result{ReturnCode: 137, OutOfMemory: true}, "", errors.Exhausted, "memory"},
		{commands.Result{ReturnCode: 1}, "npm ERR! ENOSPC", errors.Exhausted, "disk was full"},
		{commands.Result{ReturnCode: 1}, "npm ERR! EDQUOT", errors.Exhausted, "disk was full"},
		{commands.Result{ReturnCode: 1}, "tar: a: Cannot open: Disk quota exceeded", errors.Exhausted, "disk was full"},
		{commands.Result{ReturnCode: 124, TimedOut: true}, "", errors.Timeout, "too long"},
	} {
		err := Explain(s, c.result, c.output, Repository{Name: "o/n", URL: "https://example.org/o/n"})
		if err == nil != (c.kind == "") || err != nil &&
			(errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.text) ||
				len(errors.Message(err)) > 300) {
			t.Errorf("%+v: %v", c.result, err)
		}
	}
	for _, c := range []struct{ command, remedy string }{
		{"go mod download", "harvest repo rm o/n && harvest repo add 'https://example.org/o/n' --setup '" + setupGo +
			"'"},
		{"cargo fetch --locked", "--setup 'apt-get update && apt-get install -y cargo'"},
		{"bundle config set --local path vendor/bundle && bundle install",
			"--setup 'apt-get update && apt-get install -y bundler"},
		{"npm ci", "--image agent"}, {"odd; thing", "--image, or install it with --setup"},
	} {
		err := Explain(Step{Stage: "install", Dir: ".", Command: c.command}, commands.Result{ReturnCode: 127}, "",
			Repository{Name: "o/n", URL: "https://example.org/o/n"})
		if !strings.Contains(errors.RemedyOf(err), c.remedy) {
			t.Errorf("%s: %s", c.command, errors.RemedyOf(err))
		}
	}
	err := Explain(Step{Stage: "install", Dir: ".", Command: "go build"}, commands.Result{ReturnCode: 127}, "",
		Repository{HasSetup: true})
	if !strings.HasPrefix(errors.RemedyOf(err), "add this to the command of --setup: ") {
		t.Error(errors.RemedyOf(err))
	}
}
