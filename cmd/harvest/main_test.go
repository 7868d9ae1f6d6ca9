package main

import (
	"context"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/internal/app"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) {
	app.Helpers(context.Background())
	testscript.Main(s3test.M{M: m}, map[string]func(){"harvest": main})
}

// The scripts run on two engines: on the fake with this program itself, which counts coverage and looks for races, and
// on gVisor with the ordinary binary.

func TestScriptsFake(t *testing.T) {
	t.Parallel()
	host.Scripts(t, "testdata/script", "fake", nil)
}
