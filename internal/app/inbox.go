package app

import (
	"context"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/inbox/notify"
	"github.com/RelevanceAI/harvest/internal/store"
)

// openInbox opens the inboxes of all accounts, with the receivers of the configuration.
func (a *App) openInbox(ctx context.Context, db *store.DB) error {
	receivers, err := receiversOf(a.cfg.Notify, os.Getenv("PATH"))
	if err != nil {
		return err
	}
	a.inbox, err = inbox.Open(ctx, inbox.Options{Store: db.Inbox(), Journal: a.events, Receivers: receivers})
	if err != nil {
		return err
	}
	a.then("the inbox", func(context.Context) error { a.inbox.Close(); return nil })
	return nil
}

// receiversOf returns the webhook and the command, in this order. Each keeps its place if the other is missing, since
// items that are due remember the place.
func receiversOf(cfg config.Notify, path string) ([]inbox.Receiver, error) {
	choice := notify.Choice{Accounts: cfg.Accounts}
	for _, kind := range cfg.Kinds {
		choice.Kinds = append(choice.Kinds, inbox.Kind(kind))
	}
	all := []inbox.Receiver{notify.None{}, notify.None{}}
	if cfg.Webhook != "" {
		// The address is the operator's choice.
		w, err := notify.NewWebhook(choice, cfg.Webhook.Reveal(), cfg.Secret.Reveal(),
			netguard.Rules{Any: true}.NewTransport(nil))
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "notify.secret: %s", errors.Message(err))
		}
		all[0] = w
		logf.Redact(cfg.Webhook.Reveal(), cfg.Secret.Reveal())
	}
	if cfg.Command != "" {
		all[1] = notify.Command{Choice: choice, Args: strings.Fields(cfg.Command), Path: path}
	}
	return all, nil
}

// reportLogin puts a login that a provider no longer accepts into the inbox, in the place of an earlier failure.
func reportLogin(ctx context.Context, box *inbox.Box, account, secret, reason string) {
	ctx = context.WithoutCancel(ctx)
	err := box.See(ctx, account, inbox.Selection{Secret: secret})
	if err == nil {
		err = box.Add(ctx, inbox.Item{Account: account, Kind: inbox.Login, Key: "login/" + ids.New(), Secret: secret,
			What: secret + ": " + reason})
	}
	if err != nil {
		logf.Errorf(ctx, "report a failed login to the inbox: %v", err)
	}
}
