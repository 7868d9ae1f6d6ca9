package modal

import (
	"context"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/volume"
)

// noVolumes has no volumes.
type noVolumes struct{}

func (noVolumes) unsupported() error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "the engine modal has no volumes"), "copy files in and out of sandboxes")
}

func (n noVolumes) Create(context.Context, string) (volume.Volume, error) {
	return nil, n.unsupported()
}

func (n noVolumes) Open(_ context.Context, name string) (volume.Volume, error) {
	return nil, errors.Newf(errors.NotFound, "there is no volume %.150q: the engine modal has none", name)
}

func (noVolumes) List(context.Context) ([]volume.Info, error) { return []volume.Info{}, nil }

func (n noVolumes) Delete(ctx context.Context, name string) error {
	_, err := n.Open(ctx, name)
	return err
}
