#!/bin/sh
set -e
echo "installing go"
