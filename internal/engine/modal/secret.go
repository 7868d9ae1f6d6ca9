package modal

import (
	"context"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// secrets finds secrets that Modal stores. NotFound if one of the names does not exist.
func (e *Engine) secrets(ctx context.Context, names []string) ([]*sdk.Secret, error) {
	var found []*sdk.Secret
	for _, name := range names {
		one, err := ask(ctx, e, "find a secret", func(ctx context.Context) (*sdk.Secret, error) {
			return e.client.Secrets.FromName(ctx, name, &sdk.SecretFromNameParams{Environment: e.opts.Environment})
		})
		if errors.KindOf(err) == errors.NotFound {
			where := ""
			if e.opts.Environment != "" {
				where = " in the environment " + e.opts.Environment
			}
			err = errors.Remedy(errors.Explainf(err, errors.NotFound, "Modal has no secret %q%s", name, where),
				"make it with `modal secret create %s KEY=value`, or name one of Harvest's (without modal:)", name)
		}
		if err != nil {
			return nil, errors.Stage(err, "secrets")
		}
		found = append(found, one)
	}
	return found, nil
}
