//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/image"
)

func TestDoctorOnTheAgentImage(t *testing.T) {
	t.Parallel()
	img := image.Image{ID: "img_1", Size: 2 << 30, Parts: []image.Part{{Name: "claude", Version: "2"},
		{Name: "less", Version: "1"}}}
	if f := agentImage(img); !f.OK || f.Needed || f.Remedy != "" || !strings.Contains(f.Detail, "claude 2") ||
		strings.Contains(f.Detail, "less") {
		t.Errorf("a whole one: %+v", f)
	}
	img.Missing = []image.Part{{Name: "volta", Reason: "no such host"}}
	if f := agentImage(img); f.OK || f.Needed || f.Remedy == "" ||
		!strings.Contains(f.Detail, "without volta: no such host") {
		t.Errorf("one that lacks something: %+v", f)
	}
}
