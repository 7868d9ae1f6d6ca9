package modal

import (
	"cmp"
	"context"
	"maps"
)

// place is the value of the variables that name a cloud and a region: there is this machine only.
const place = "local"

// inside returns the environment of a command in the Fleet's sandbox ref: env, and the variables that Modal sets and
// reserves. ref is b's sandbox or one of its sidecars, whose programs see the ID of b's sandbox.
func (b *box) inside(ctx context.Context, ref string, env map[string]string) (map[string]string, error) {
	of := b
	var err error
	if ref != b.id {
		if of, err = b.s.boxes.get(ctx, b.account, ref); err != nil {
			return nil, err
		}
	}
	sb, err := b.s.opts.Fleet.Get(ctx, b.account, ref)
	if err == nil && sb.Tags[tagSidecar] != "" {
		sb, err = b.s.opts.Fleet.Get(ctx, b.account, sb.Tags[tagSidecar])
	}
	if err != nil {
		return nil, err
	}
	all := maps.Clone(env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, map[string]string{
		"MODAL_SANDBOX_ID": sandboxIDOf(sb), "MODAL_TASK_ID": taskIDOf(sb), "MODAL_IMAGE_ID": of.def.GetImageId(),
		"MODAL_ENVIRONMENT": b.s.envs.Name(b.account, envOr(sb.Tags[tagEnv])),
		"MODAL_CLOUD_PROVIDER": cmp.Or(of.def.GetCloudProviderStr(),
			place), "MODAL_REGION": place,
	})
	return all, nil
}
