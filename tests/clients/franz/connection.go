package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// connected returns a client of the brokers. With FIRN_CA it uses TLS and trusts this file. FIRN_MECHANISM, FIRN_USER and
// FIRN_PASSWORD, or FIRN_CERT and FIRN_KEY, say who it is.
func connected(bootstrap string, options ...kgo.Opt) (*kgo.Client, error) {
	options = append([]kgo.Opt{kgo.SeedBrokers(bootstrap)}, options...)
	if authority := os.Getenv("FIRN_CA"); authority != "" {
		config, err := trusting(authority)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if name := os.Getenv("FIRN_MECHANISM"); name != "" {
		mechanism, err := mechanism(name, os.Getenv("FIRN_USER"), os.Getenv("FIRN_PASSWORD"))
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.SASL(mechanism))
	}
	return kgo.NewClient(options...)
}

func trusting(authority string) (*tls.Config, error) {
	content, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !config.RootCAs.AppendCertsFromPEM(content) {
		return nil, errors.New("no certificate in " + authority)
	}
	if file := os.Getenv("FIRN_CERT"); file != "" {
		pair, err := tls.LoadX509KeyPair(file, os.Getenv("FIRN_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func mechanism(name, user, password string) (sasl.Mechanism, error) {
	switch name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Auth{Token: password}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("unknown mechanism %q", name)
}
