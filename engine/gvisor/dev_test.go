package gvisor

import (
	"context"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/enginetest"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/volume"
	"os"
	"testing"
)

func TestMain(m *testing.M) { Main(); os.Exit(m.Run()) }

type im struct{ image.Builder }

func (im) Find(ctx context.Context, r string) (image.Image, error) {
	if r != "base" && r != "img_base" {
		return image.Image{}, eNF
	}
	return image.Image{ID: "img_base"}, nil
}
func (im) Use(id, who string) (func(), error) { return func() {}, nil }
func (im) Root(image.Image) string            { return "/tmp/exp/root.erofs" }
func TestConf(t *testing.T) {
	enginetest.Run(t, enginetest.Harness{Open: func(t *testing.T, dir string) engine.Engine {
		v, err := volume.OpenDir(dir + "/volumes")
		if err != nil {
			t.Fatal(err)
		}
		e, err := Open(t.Context(), Options{Dir: dir, Images: im{}, Volumes: v})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}})
}
