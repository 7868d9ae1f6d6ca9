package app

import (
	"context"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/store"
)

// openSecrets opens the secrets, with the providers to which accounts can log in.
func (a *App) openSecrets(ctx context.Context, db *store.DB) error {
	// The addresses are the providers' own, or the operator's choice.
	providers, err := grant.NewProviders(a.cfg.Logins.Providers, netguard.Rules{Any: true}.NewTransport(nil))
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "logins.providers: %s", errors.Message(err))
	}
	a.secrets, err = secret.Open(ctx, secret.Options{
		Store: db.Secrets(), KeyFile: filepath.Join(a.cfg.Data, secretKeyName), Environ: os.Environ(),
		EnvironAccount: personal, Providers: providers,
		Failed: func(account, name, reason string) {
			a.events.Post(ctx, event.Draft{Stream: event.AccountStream(account),
				Type: string(record.EventCredentialFailed), Data: record.FailedLogin{Secret: name, Reason: reason}})
			reportLogin(ctx, a.inbox, account, name, reason)
		},
	})
	if err != nil {
		return err
	}
	a.then("the logins", a.secrets.Close)
	return nil
}

// failedLogins reports the logins of the operator that a running server cannot use.
func failedLogins(all []api.Login) (findings []finding) {
	for _, l := range all {
		if l.State != "failed" && l.State != "expired" {
			continue
		}
		f := finding{Name: "login", Detail: l.Reason, Remedy: "harvest login " + l.Provider}
		if l.State == "expired" {
			f.Detail = "the token of the login to " + l.Provider + " has expired, and cannot be renewed"
		}
		findings = append(findings, f)
	}
	return findings
}
