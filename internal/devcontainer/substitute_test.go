package devcontainer_test

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

func TestSubstitute(t *testing.T) {
	t.Parallel()
	vars := devcontainer.Variables{LocalEnv: map[string]string{"A": "1", "EMPTY": "", "EVIL": "${localEnv:A}"},
		LocalFolder: "/home/ada/app", ContainerFolder: "/workspaces/app"}
	for text, want := range map[string]string{
		"${localEnv:A}": "1", "${env:A}": "1", "${localEnv:B}": "", "${localEnv:B:d}": "d", "${localEnv:B:}": "",
		"${localEnv:EMPTY:d}": "", "${localEnv:B:a:b}": "a", "x${localEnv:A}y${localEnv:A}": "x1y1", "${localEnv:}": "",
		"${localWorkspaceFolder}": "/home/ada/app", "${localWorkspaceFolderBasename}": "app",
		"${containerWorkspaceFolder}": "/workspaces/app", "${containerWorkspaceFolderBasename}": "app",
		"${containerEnv:A}": "${containerEnv:A}", "${devcontainerId}": "${devcontainerId}", "${other}": "${other}",
		"${}": "${}", "${localEnv:A": "${localEnv:A", "$A ${A}": "$A ${A}", "${localenv:A}": "${localenv:A}",
		// Values are not searched: a user cannot smuggle a variable in.
		"${localEnv:EVIL}": "${localEnv:A}",
	} {
		c, err := parse(t,
			`{"name": "`+text+`", "postCreateCommand": {"${localEnv:A}": ["`+text+`"]}}`).Substitute(vars)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := c.PostCreateCommand.Parallel["${localEnv:A}"].Args; c.Name != want || got[0] != want {
			t.Errorf("%s: %q, %q, want %q", text, c.Name, got, want)
		}
	}
}

func TestSubstituteWithoutValuesKeepsVariables(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"${localEnv:A:b}", "${localWorkspaceFolder}", "${localWorkspaceFolderBasename}",
		"${containerWorkspaceFolder}", "${containerWorkspaceFolderBasename}", "${containerEnv:A}",
		"${devcontainerId}"} {
		c, err := parse(t, `{"name": "`+text+`"}`).Substitute(devcontainer.Variables{})
		if err != nil || c.Name != text {
			t.Errorf("%q, %v, want %q", c.Name, err, text)
		}
	}
}

func TestWorkspaceFolderTakesPrecedence(t *testing.T) {
	t.Parallel()
	vars := devcontainer.Variables{LocalFolder: "/home/ada/app", ContainerFolder: "/workspaces/app"}
	c, err := parse(t, `{"workspaceFolder": "/w/${localWorkspaceFolderBasename}",
		"name": "${containerWorkspaceFolder}"}`).
		Substitute(vars)
	if err != nil || c.Name != "/w/app" || c.WorkspaceFolder != "/w/app" {
		t.Errorf("%+v, %v", c, err)
	}
	folder, err := parse(t, `{}`).Folder(vars)
	if err != nil || folder != "/workspaces/app" {
		t.Errorf("%q, %v", folder, err)
	}
}

func TestVariablesNeedNames(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"name": "${localEnv}"}`, `{"mounts": ["target=/a,source=${env}"]}`,
		`{"remoteEnv": {"A": "${containerEnv}"}}`, `{"workspaceFolder": "/${localEnv}"}`} {
		_, err := parse(t, text).Substitute(devcontainer.Variables{})
		wantError(t, err, errors.Invalid, "has no name of a variable")
	}
	m, err := devcontainer.ParseMetadata(`{"remoteUser": "${localEnv}"}`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Substitute(devcontainer.Variables{})
	wantError(t, err, errors.Invalid, "has no name of a variable")
}

// A value that a variable gives must fit the property, too.
func TestSubstitutedValuesAreChecked(t *testing.T) {
	t.Parallel()
	c := parse(t, "{\n\"waitFor\": \"${localEnv:WHEN:postCreateCommand}\", "+
		"\"forwardPorts\": [\"db:${localEnv:PORT:1}\"]}")
	good, err := c.Substitute(devcontainer.Variables{LocalEnv: map[string]string{}})
	if err != nil || good.WaitFor != "postCreateCommand" || good.ForwardPorts[0] != "db:1" {
		t.Errorf("%+v, %v", good, err)
	}
	_, err = c.Substitute(devcontainer.Variables{LocalEnv: map[string]string{"WHEN": "never"}})
	wantError(t, err, errors.Invalid, `line 2, column 12: "waitFor" must be one of`)
}

func TestID(t *testing.T) {
	t.Parallel()
	id, err := devcontainer.ID(map[string]string{"b": "2", "a": "<1>"})
	if err != nil || len(id) != 52 {
		t.Errorf("%q, %v", id, err)
	}
	other, err := devcontainer.ID(map[string]string{"b": "2", "a": "<2>"})
	if err != nil || other == id {
		t.Errorf("%q, %v", other, err)
	}
}
